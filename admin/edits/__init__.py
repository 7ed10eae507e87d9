"""What operators change while Sluice runs: edits of limits, switches, and the record of who changed what."""
