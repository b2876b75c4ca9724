"""How our intervals, tests and rules behave: simulations, and draws from recorded runs."""
