"""What accompanies a released checkpoint: model card, badge, experiment loggers."""
