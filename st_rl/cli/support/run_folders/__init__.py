"""Run folders: their files, summary, comparison and policies."""
