"""How strong our attacks are next to stronger or outside ones, and what AutoAttack in two phases saves."""
