"""A Debian root file system out of .debs, for any architecture, with nothing of it executed.

The data archives are laid out as they are; what the packages' scripts would have done is read from
a data file (`debs.yaml`) or done here, and a package whose scripts say anything else is refused.
"""
