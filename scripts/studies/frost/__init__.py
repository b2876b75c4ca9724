"""Make the textures of ice that `frost` falls back to: `corruptions/ice/`."""
