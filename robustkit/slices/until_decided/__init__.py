"""Audits that end as soon as each rule of a policy is decided."""
