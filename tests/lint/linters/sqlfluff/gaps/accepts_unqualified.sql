select j.id
from job as j;
