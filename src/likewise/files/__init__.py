"""The contents of a path: names of files, parts and columns, the listing of folders, and the source that reads it."""
