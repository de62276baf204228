"""Runs made to answer one question: how much noise, how it scales, how long to an accuracy.

A study's records lie in a folder of its own below that of the machine, results/MACHINE/KIND/, so that they
never stand in for the repeats of `bench run`. What they say is derived on reading, as all else.
"""
