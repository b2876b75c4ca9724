"""QUEST's toy retrieval task: its models, their training, and its page."""
