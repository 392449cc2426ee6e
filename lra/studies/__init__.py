"""Studies that stand on the suite; nothing of the suite imports them, and none imports another one."""
