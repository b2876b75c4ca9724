"""Take an audit from request to finished run: plan, manifest, units of work, processes."""
