"""The shard format: writer and reader; the only home of h5py."""
