"""A module of a package, run as `python -m pkg.train`."""

import argparse

import numpy as np

from pkg.data import load


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("-o", "--out", default="fit.npy")
    options = parser.parse_args()
    x, y = load(options.rows)
    np.save(options.out, np.linalg.lstsq(x, y, rcond=None)[0])
    print("rows", options.rows)


if __name__ == "__main__":
    main()
