"""What an operator touches: command line, settings, metrics and health. Composes and starts the rest."""
