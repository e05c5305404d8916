"""Clusters as profiles, the shipped ones beside this module, and the jobs that are made of them."""
