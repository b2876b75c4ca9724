"""What segmenters look at: maps of each class next to controls."""
