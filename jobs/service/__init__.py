"""What the long-running parts share: their life, their own connections, and hearing of enqueues.

The worker, the scheduler and the relay are built on it and know nothing of each other.
"""
