"""The text of a teacher's base class that writes down what it is asked, and may die of it."""

METERED = '''
import hashlib
import os

import torch


class Metered:
    """The digest of every image goes into the file ``log``; after DIES_AFTER of them, if that is
    set, the next call kills the process.
    """

    def __init__(self, log):
        self.log, self.left = log, int(os.environ.get("DIES_AFTER", "10000"))

    def count(self, images):
        if self.left <= 0:
            os.kill(os.getpid(), 9)
        self.left -= len(images)
        with open(self.log, "a") as file:
            file.writelines(hashlib.sha256(x.numpy().tobytes()).hexdigest() + "\\n" for x in images)
'''
