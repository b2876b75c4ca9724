"""The commands: they parse their words and call, without logic of their own."""

import click

from ...common.plugins import Registry, instance_of

EVERY_COMMAND: Registry[click.Command] = Registry("commands", {}, instance_of(click.Command))
"""Robustkit's commands, once `cli.app` was imported, and those of plug-ins, by name."""
