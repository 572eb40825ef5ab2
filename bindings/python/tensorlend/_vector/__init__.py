"""The processes of `tensorlend.gymnasium.SharedVectorEnv`.

A worker sends the arrays of each observation as one message of its stream, and all other data
through a pipe. The reply in the pipe contains the number of the message, which is the message's
timestamp. With this number the program skips the observations of calls that timed out.
"""
