"""Lets operators change limits and switches while Sluice runs, and keeps an audit trail."""
