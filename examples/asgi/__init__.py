"""A web application that enqueues jobs and runs them in its own process. See app.py."""
