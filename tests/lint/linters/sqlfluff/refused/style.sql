select j.id, j.claims+1 next
from jobs.job j
where j.state != 'ready' AND cast(j.claims as text)<>'1'
