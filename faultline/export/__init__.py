"""`faultline export`: one file, or one upstream issue, that shows a cell without this repository."""
