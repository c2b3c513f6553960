"""Files: the names of files, parts and columns, text in files, the source for a path, and published weights."""
