"""Square matrices of the kinds of PSF's Table 1, from installed packages or generated, without downloads.

The kinds are those of the table, the matrices are not: its files are not in any package.
"""

from collections.abc import Iterator

import numpy as np

from ...console import pip_install

EXTRA = pip_install("factorise")
SIDE = 256  # pixels of an image's side
PHOTOS = ["astronaut", "brick", "camera", "chelsea", "coffee", "coins"]
PHOTOS += ["grass", "gravel", "moon", "retina", "rocket", "page"]

Named = Iterator[tuple[str, np.ndarray]]


def images() -> Named:
    """The middle squares of scikit-image's photographs, 256 x 256 grey levels 0..255."""
    from skimage import color, data, transform

    for name in PHOTOS:
        photo = getattr(data, name)()
        grey = color.rgb2gray(photo) if photo.ndim == 3 else photo / 255
        side = min(grey.shape)
        top, left = ((length - side) // 2 for length in grey.shape)
        square = grey[top : top + side, left : left + side]
        yield name, 255 * transform.resize(square, (SIDE, SIDE), anti_aliasing=side > SIDE)


def gradients() -> Named:
    """Gradient magnitudes of the images."""
    for name, image in images():
        yield name, np.hypot(*np.gradient(image))


def dense_graphs() -> Named:
    """Affinities exp(-d² / median d²) between the first 256 samples of scikit-learn's data sets, standardised."""
    from scipy.spatial.distance import pdist, squareform

    for name, samples in _tables():
        samples = samples[:SIDE]
        samples = samples[:, samples.std(0) > 0]
        d = squareform(pdist((samples - samples.mean(0)) / samples.std(0), "sqeuclidean"))
        yield name, np.exp(-d / np.median(d))


def networks() -> Named:
    """Weighted adjacency of networkx's social networks, and of two random graphs."""
    import networkx as nx

    graphs = {
        "karate_club": nx.karate_club_graph(),
        "les_miserables": nx.les_miserables_graph(),
        "southern_women": nx.davis_southern_women_graph(),
        "florentine_families": nx.florentine_families_graph(),
        "small_world": nx.watts_strogatz_graph(128, 6, 0.1, seed=0),
        "preferential": nx.barabasi_albert_graph(128, 3, seed=0),
    }
    for name, graph in graphs.items():
        yield name, nx.to_numpy_array(graph)


def meshes() -> Named:
    """Laplacians of triangulated surfaces: degree on the diagonal, -1 at edges."""
    import networkx as nx
    from scipy.spatial import ConvexHull, Delaunay

    n, random = 128, np.random.default_rng(0)
    z, turn = 1 - (2 * np.arange(n) + 1) / n, np.pi * (1 + 5**0.5) * np.arange(n)
    sphere = np.stack([np.sqrt(1 - z**2) * np.cos(turn), np.sqrt(1 - z**2) * np.sin(turn), z], 1)
    here = np.arange(n).reshape(16, 8)
    right, down, both = (np.roll(here, shift, (0, 1)) for shift in ((0, -1), (-1, 0), (-1, -1)))
    torus = np.stack([here, right, both, here, both, down], -1).reshape(-1, 3)
    for name, triangles in (
        ("sphere", ConvexHull(sphere).simplices),
        ("torus", torus),
        ("plane", Delaunay(random.uniform(size=(n, 2))).simplices),
    ):
        graph = nx.Graph(triangles[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2).tolist())
        yield name, nx.laplacian_matrix(graph, nodelist=range(n)).toarray().astype(float)


def covariances() -> Named:
    """Covariances of the columns of scikit-learn's data sets, and of 8 x 8 patches of three images."""
    for name, samples in _tables():
        yield name, np.cov(samples, rowvar=False)
    for name, image in images():
        if name in ("camera", "grass", "moon"):
            patches = np.lib.stride_tricks.sliding_window_view(image, (8, 8)).reshape(-1, 64)
            yield f"patches_{name}", np.cov(patches, rowvar=False)


def _tables() -> Named:
    from sklearn import datasets

    for name in ("wine", "breast_cancer", "diabetes", "digits"):
        yield name, getattr(datasets, f"load_{name}")().data


KINDS = {
    "image": images,
    "gradient": gradients,
    "dense_graph": dense_graphs,
    "network": networks,
    "mesh": meshes,
    "covariance": covariances,
}
