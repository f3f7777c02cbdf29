"""Tests of `imel explore`: its answers, what it refuses, its page."""
