"""Changes by operators while Sluice runs: edits of limits, switches, and the audit trail."""
