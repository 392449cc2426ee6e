"""The convolution kernel of S4D, drawn: python examples/s4d_kernel.py [length]

S4D (Gu, Gupta, Goel and Re 2022) is a linear recurrence with a diagonal complex matrix, x_k = Ā x_(k-1) + B̄ u_k and
y_k = 2 Re(C x_k). It is also a convolution with the kernel K_l = 2 Re Σ_n C_n Ā_n^l B̄_n. This script draws the
kernel for the two initialisations of the paper. ``lra/reference/s4d.py`` has the equations.
"""

import sys

import matplotlib.pyplot as plt
import torch

from lra.reference.s4d import convolve, discretise, inv_eigenvalues, kernel, lin_eigenvalues, recurrence

INITS = {"S4D-Lin": lin_eigenvalues, "S4D-Inv": inv_eigenvalues}
STATES = 64
# The step Δ sets the time scale: a state with real part -1/2 decays to 1/e after 2 / Δ tokens.
STEPS = (0.1, 0.01)


def main(length: str = "400") -> dict[str, float]:
    """Draw the kernels, and return the largest difference between convolution and recurrence by initialisation."""
    torch.manual_seed(0)
    C = torch.randn(STATES // 2, dtype=torch.complex128)
    B = torch.ones(STATES // 2, dtype=torch.complex128)
    u = torch.randn(64, dtype=torch.float64)
    differences = {}

    figure, axes = plt.subplots(2, 2, figsize=(8, 4.5), width_ratios=(5, 2), layout="constrained")
    for (name, eigenvalues), (kernel_axis, plane_axis) in zip(INITS.items(), axes, strict=True):
        A = eigenvalues(STATES)
        for step in STEPS:
            A_bar, B_bar = discretise(A, B, torch.tensor(step, dtype=torch.float64), "zoh")
            K = kernel(A_bar, B_bar, C, int(length))
            kernel_axis.plot(K / K.abs().max(), label=f"Δ = {step}", linewidth=1)
            plane_axis.plot(A_bar.real, A_bar.imag, "o", label=f"Δ = {step}", markersize=3)

            # The convolution and the recurrence are the same map.
            by_kernel = convolve(kernel(A_bar, B_bar, C, len(u)), u)
            by_recurrence = recurrence(A_bar, B_bar, C, u)
            difference = (by_kernel - by_recurrence).abs().max().item()
            differences[name] = max(difference, differences.get(name, 0.0))
        print(f"{name}: convolution and recurrence differ by at most {differences[name]:.1e}")

        kernel_axis.set_title(f"{name}: kernel", fontsize=10)
        kernel_axis.set_xlabel("lag l (tokens)")
        kernel_axis.set_ylabel("K / max |K|")
        kernel_axis.legend(loc="upper right")
        # Inside the unit circle the recurrence is stable.
        plane_axis.add_patch(plt.Circle((0, 0), 1, fill=False, color="gray"))
        plane_axis.set_title("eigenvalues Ā", fontsize=10)
        plane_axis.set_aspect("equal")
        plane_axis.set_xlim(-1.1, 1.1)
        plane_axis.set_ylim(-1.1, 1.1)
    figure.savefig("s4d_kernel.png", dpi=150)
    return differences


if __name__ == "__main__":
    main(*sys.argv[1:])
