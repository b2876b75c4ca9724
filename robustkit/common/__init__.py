"""What every room may use, whatever the domain: whole files, TOML, locks, seeded draws, interval statistics."""
