"""The operator's side: command line, settings, admin page, API, metrics and reports. Starts the data path."""
