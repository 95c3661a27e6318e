"""Metrics, evaluator, recording and rendering of trained policies."""
