"""Where the bytes of storages are, with a plan or without: counts them, resizes storages, keeps them within a budget by
fetching and evicting on demand, and brings what saving and methods that read memory need."""
