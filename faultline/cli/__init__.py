"""Options to requests, results to exit codes."""
