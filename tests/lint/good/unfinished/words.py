# mastodon, XXXL
try:
    loop()
except NotImplementedError:
    pass
