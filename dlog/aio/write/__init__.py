"""Writing a log: taking it over, appending, rolling, reopening."""
