"""Pictures drawn from plain data: neither torch nor the algorithm is needed to redraw one."""
