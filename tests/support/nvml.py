"""Stands in for NVIDIA's management library: a machine with the GPUs that a test names."""


class NVMLError(Exception):
    """As NVML's errors are raised."""


class Memory:
    total = 80 << 30


class Nvml:
    """`linked` has the pairs of GPUs with NVLink between them; the others are apart as far as their numbers are."""

    NVMLError = NVMLError
    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK, NVML_TOPOLOGY_SYSTEM = 2, 0, 50

    def __init__(self, count, linked=(), fails=""):
        self.count, self.linked, self.fails, self.open = count, {frozenset(pair) for pair in linked}, fails, 0

    def nvmlInit(self):
        if self.fails:
            raise NVMLError(self.fails)
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlSystemGetDriverVersion(self):
        return "580.65.06"

    def nvmlDeviceGetCount(self):
        return self.count

    def nvmlDeviceGetHandleByIndex(self, number):
        return number

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle:04x}"

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return Memory

    def nvmlDeviceGetP2PStatus(self, one, other, index):
        if not self.linked:
            raise NVMLError("Not Supported")
        return 0 if frozenset((one, other)) in self.linked else 5

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
        return 10 * abs(one - other)
