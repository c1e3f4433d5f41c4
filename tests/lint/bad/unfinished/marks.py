# TODO: later
# FIXME
raise NotImplementedError
XXX = 1
