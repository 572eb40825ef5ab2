"""The package ``smartredis`` in a process that was started by ``python -m tensorlend.smartredis``."""

from tensorlend.smartredis import alias

alias.install()
