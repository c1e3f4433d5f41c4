from __future__ import annotations

import requests
import yaml
