"""What stands beside a released checkpoint: model card, badge, experiment loggers."""
