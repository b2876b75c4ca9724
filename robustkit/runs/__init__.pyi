from .folder import RunFolder as RunFolder
