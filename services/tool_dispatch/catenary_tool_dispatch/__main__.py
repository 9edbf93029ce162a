import sys

from catenary_tool_dispatch.service import main

sys.exit(main())
