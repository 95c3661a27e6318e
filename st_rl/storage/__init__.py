"""Rollouts in memory and on disk."""
