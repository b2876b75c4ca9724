"""The tables of the QUEST paper on the zoo, over several trainings of each formula."""
