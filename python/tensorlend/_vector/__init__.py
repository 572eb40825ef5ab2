"""The processes of `tensorlend.gymnasium.SharedVectorEnv`.

A worker sends the arrays of each observation as one message of its stream, and everything else through a pipe. The reply
in the pipe names the message by its number, which is the message's timestamp. Numbers let the program skip the
observations of calls that timed out.
"""
