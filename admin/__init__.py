"""The operator's side: command line, settings, page, API, metrics and reports. Starts the data path."""
