"""Square matrices of the kinds in Table 1 of PSF-Attn, from installed packages or generated, without downloads.

The matrices are not the paper's, whose files are in no package.
"""

from collections.abc import Iterator

import numpy as np

from ...console import pip_install

# Command that installs the packages with the matrices.
EXTRA = pip_install("factorise")
# Pixels of an image's side, and maximum number of samples of a dense graph.
SIDE = 256
PHOTOS = ["astronaut", "brick", "camera", "chelsea", "coffee", "coins"]
PHOTOS += ["grass", "gravel", "moon", "retina", "rocket", "page"]

# Names and matrices (n,n).
Named = Iterator[tuple[str, np.ndarray]]


def images() -> Named:
    """Yield the middle squares of scikit-image's photographs, 256 x 256 grey levels 0..255."""
    from skimage import color, data, transform

    for name in PHOTOS:
        photo = getattr(data, name)()
        grey = color.rgb2gray(photo) if photo.ndim == 3 else photo / 255
        # Crop the middle square, and resize it.
        height, width = grey.shape
        side = min(height, width)
        top = (height - side) // 2
        left = (width - side) // 2
        square = grey[top : top + side, left : left + side]
        yield name, 255 * transform.resize(square, (SIDE, SIDE), anti_aliasing=side > SIDE)


def gradients() -> Named:
    """Yield gradient magnitudes of the images."""
    for name, image in images():
        down, across = np.gradient(image)
        yield name, np.hypot(down, across)


def dense_graphs() -> Named:
    """Yield affinities exp(-d² / median d²) between the first 256 standardised samples of scikit-learn's data sets."""
    from scipy.spatial.distance import pdist, squareform

    for name, samples in _tables():
        samples = samples[:SIDE]
        # Drop constant columns, which cannot be standardised.
        samples = samples[:, samples.std(0) > 0]
        standardised = (samples - samples.mean(0)) / samples.std(0)
        squares = squareform(pdist(standardised, "sqeuclidean"))
        yield name, np.exp(-squares / np.median(squares))


def networks() -> Named:
    """Yield the weighted adjacency of networkx's social networks, and of two random graphs."""
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
    """Yield Laplacians of triangulated surfaces: degree on the diagonal, -1 at edges."""
    import networkx as nx
    from scipy.spatial import ConvexHull, Delaunay

    n = 128
    random = np.random.default_rng(0)

    # Sphere: points on a golden-angle spiral, and the triangles of their convex hull.
    number = np.arange(n)
    z = 1 - (2 * number + 1) / n
    angle = np.pi * (1 + 5**0.5) * number
    radius = np.sqrt(1 - z**2)
    x = radius * np.cos(angle)
    y = radius * np.sin(angle)
    sphere = np.stack([x, y, z], 1)

    # Torus: a grid of 16 x 8 vertices with wrap-around; each cell is cut into two triangles.
    vertex = np.arange(n).reshape(16, 8)
    right = np.roll(vertex, -1, 1)
    below = np.roll(vertex, -1, 0)
    diagonal = np.roll(vertex, (-1, -1), (0, 1))
    corners = [vertex, right, diagonal, vertex, diagonal, below]
    torus = np.stack(corners, -1).reshape(-1, 3)

    # Plane: the Delaunay triangulation of random points.
    plane = random.uniform(size=(n, 2))
    surfaces = {
        "sphere": ConvexHull(sphere).simplices,
        "torus": torus,
        "plane": Delaunay(plane).simplices,
    }
    for name, triangles in surfaces.items():
        # The three edges of each triangle.
        ends = triangles[:, [0, 1, 1, 2, 2, 0]]  # (triangles,6)
        edges = ends.reshape(-1, 2)  # (edges,2)
        graph = nx.Graph(edges.tolist())
        laplacian = nx.laplacian_matrix(graph, nodelist=range(n))
        yield name, laplacian.toarray().astype(float)


def covariances() -> Named:
    """Yield covariances of the columns of scikit-learn's data sets, and of 8 x 8 patches of three images."""
    for name, samples in _tables():
        yield name, np.cov(samples, rowvar=False)
    for name, image in images():
        if name in ("camera", "grass", "moon"):
            windows = np.lib.stride_tricks.sliding_window_view(image, (8, 8))  # (249,249,8,8)
            yield f"patches_{name}", np.cov(windows.reshape(-1, 64), rowvar=False)


def _tables() -> Named:
    """Yield the samples (n,features) of scikit-learn's data sets, by name."""
    from sklearn import datasets

    for name in ("wine", "breast_cancer", "diabetes", "digits"):
        load = getattr(datasets, f"load_{name}")
        yield name, load().data


KINDS = {
    "image": images,
    "gradient": gradients,
    "dense_graph": dense_graphs,
    "network": networks,
    "mesh": meshes,
    "covariance": covariances,
}
