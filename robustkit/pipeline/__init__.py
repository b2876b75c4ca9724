"""Take an audit from a request to a finished run: plan, manifest, units of work, processes."""
